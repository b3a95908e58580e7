"""What makes a process of a service: settings, the parts it is handed, start, signals, stop."""
