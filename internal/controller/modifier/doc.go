// Package modifier gives volumes the attributes of other VolumeAttributesClasses, as their claims request.
package modifier
