"""From bounds to a reserve config: what to reserve, what it costs, what stays open."""
