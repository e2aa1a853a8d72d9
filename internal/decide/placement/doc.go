// Package placement decides which node a Pod goes to: one where all its
// volumes are or can be made.
package placement
