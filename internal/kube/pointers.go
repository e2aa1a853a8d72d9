package kube

// Pointers returns where the items of a list are: lists hold their objects by
// value, caches and decisions take pointers.
func Pointers[T any](items []T) []*T {
	out := make([]*T, 0, len(items))
	for i := range items {
		out = append(out, &items[i])
	}
	return out
}
