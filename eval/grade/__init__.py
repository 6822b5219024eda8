"""Verdicts on responses: Math-Verify, choices, Oat's grader; and responses that others have
made.
"""
