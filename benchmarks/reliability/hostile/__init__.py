"""6. Input made to do harm, and where secrets end up."""
