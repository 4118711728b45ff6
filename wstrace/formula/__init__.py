"""The integer expression language, and the slicer that reads formulas out of source."""
