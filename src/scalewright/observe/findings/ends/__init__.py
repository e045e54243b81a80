"""Rules about how a run ended: each fires for the event that began the end, never for its echoes."""
