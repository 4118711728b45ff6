"""The slicer's world in a running worker: frames, modules, objects; read, never run."""
