"""What the Locust load is made of, apart from Locust: photos with known answers, clocks, checks, the knee."""
