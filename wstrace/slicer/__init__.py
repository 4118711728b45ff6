"""From a request in a worker's source to a closed formula for its bytes."""
