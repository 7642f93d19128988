"""Control planes and name servers as pods of the management cluster."""
