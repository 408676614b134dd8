"""Promotion: is a newly trained model better than the one in production, and where the pointers of the registry go."""

from tasks.promote.promotion import Decision, promote, rollback

__all__ = ["Decision", "promote", "rollback"]
