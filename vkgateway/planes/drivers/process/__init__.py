"""Control planes and name servers as processes of this machine, kept running by the supervisor."""
