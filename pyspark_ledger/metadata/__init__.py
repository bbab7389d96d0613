"""What is true about the files: the records, the store that keeps them, and the one way to change them."""
