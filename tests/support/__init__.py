"""What tests share: stand-ins for the broker's Flight service and ways to run the real one."""
