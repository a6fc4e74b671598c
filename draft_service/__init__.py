"""The draft service: a pure function from pivot features to proposals, without request state."""
