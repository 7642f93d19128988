"""What the pages of docs/operators need on a machine of one's own: public operators and images, built from source.

`python -m operators NAME` (or `make operator-NAME`) lays it in `.operators/NAME`. Users of the gateway need none of it.
"""
