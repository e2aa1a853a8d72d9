package volume

import "slices"

// Without returns a copy of a list, such as the finalizers of an object, without some of its entries; nil if none is
// left.
func Without(all []string, some ...string) []string {
	var left []string
	for _, one := range all {
		if !slices.Contains(some, one) {
			left = append(left, one)
		}
	}
	return left
}
