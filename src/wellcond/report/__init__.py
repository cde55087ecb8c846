"""JSON records to HTML pages and figures; knows no torch."""
