package kube

// Pointers returns pointers to the items: API lists hold objects by value, caches and decisions
// take pointers.
func Pointers[T any](items []T) []*T {
	out := make([]*T, 0, len(items))
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}
