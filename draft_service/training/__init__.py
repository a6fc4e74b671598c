"""Training of a drafter from shards of the target's states, and walking a text with it."""
