"""What several test modules share: reference implementations, stand-ins for libraries, cases and measurements."""
