"""A pod's life: the record that says how things stand, the table that says what follows, and the hands that do it."""
