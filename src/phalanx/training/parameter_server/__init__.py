"""Training where each worker goes at its own pace and servers keep the variables."""
