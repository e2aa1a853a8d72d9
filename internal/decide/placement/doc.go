// Package placement decides on which node a Pod runs: where all its volumes exist or can be created.
package placement
