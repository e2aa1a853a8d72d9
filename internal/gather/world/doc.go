// Package world is what a control plane knows of its cluster, for those who explain it: what its controllers keep in
// memory, and what only the API has. It serves a summary, and counts what waits.
//
// Life cycle: World.Follow before the caches start, its result when they are filled; everything else at any time.
package world
