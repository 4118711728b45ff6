"""From what a person hands over to lines of text."""
