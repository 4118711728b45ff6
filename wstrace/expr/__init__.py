"""The integer expression language of formulas: trees, parser, intervals, maximum."""
