"""What the Helm chart's hooks run: the definitions of the custom resources, and the test of an installation."""
