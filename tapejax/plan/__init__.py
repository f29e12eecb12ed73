"""What is decided once per op and kind of arguments, and what is compiled."""
