// Package resizer calls drivers to expand the volumes of claims, and then requests the expansion of
// their filesystems from the node.
package resizer
