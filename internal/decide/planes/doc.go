// Package planes decides what several control planes with one store do differently from each other.
package planes
