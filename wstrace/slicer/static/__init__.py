"""The slicer's world from source alone: a tree of Python files, nothing imported."""
