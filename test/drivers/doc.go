// Package drivers tests the drivers that volplane runs as processes, from `volplane driver add` to their removal:
// drivers that misbehave, drivers that mount by FUSE, and third-party drivers.
package drivers
