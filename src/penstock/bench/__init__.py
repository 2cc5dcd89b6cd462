"""Measurements that anybody can repeat: `penstock bench NAME`."""
