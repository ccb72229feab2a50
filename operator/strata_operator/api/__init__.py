"""The custom resources as typed, frozen values, what the cluster shows of them, and the rules of their conditions."""
