"""Values, functions and errors, to bytes and back."""
