"""From a program to its reverse."""
