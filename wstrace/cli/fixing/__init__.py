"""`wstrace fix`: the whole loop of one server, from growth allowed to a verified reserve."""
