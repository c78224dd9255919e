//! What to do about it: one file per decision, then the brains that the actors carry.
