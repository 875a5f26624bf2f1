"""Tests that share one `tandem up`, which ends with the last of them. A package, for that is how long it lasts."""
