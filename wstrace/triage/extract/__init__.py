"""From text to facts: what it says, before anyone draws a conclusion."""
