"""Going back over a tape."""
