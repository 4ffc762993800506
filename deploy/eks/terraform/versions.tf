terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }
  # up.sh and down.sh keep the state in their own folder (-backend-config=path=...).
  backend "local" {}
}

provider "aws" {
  region = var.region
  default_tags {
    # down.sh finds by this tag what is left.
    tags = { "tessera-cluster" = var.name }
  }
}

data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}
