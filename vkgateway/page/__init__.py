"""The page: what tenants and operators of the platform see of gangs, pools and nodes in a browser."""
