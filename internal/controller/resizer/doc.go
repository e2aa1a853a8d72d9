// Package resizer has drivers make the volumes of claims larger and hands the
// filesystem to the node.
package resizer
