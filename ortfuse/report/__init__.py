"""Human-readable reports."""
