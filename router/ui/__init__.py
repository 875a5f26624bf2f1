"""The page at /ui: one HTML, one JavaScript and one CSS file."""
