"""Setting up and checking the Prefect side: server, work pool, workers, limits, automations."""
