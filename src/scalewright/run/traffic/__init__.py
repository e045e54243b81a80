"""Requests put to our engine or to a server, and when each token of the answers came."""
