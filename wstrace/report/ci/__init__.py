"""The gate's judgement in the forms that CI systems read."""
