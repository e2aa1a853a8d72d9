// Package durable writes files of which a crash leaves either the old or the new
// content, and reads them again without trusting what is in their place.
package durable
